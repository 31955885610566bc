"""Horovod's missing binding to JAX: in-graph, asynchronous, on the CPU."""

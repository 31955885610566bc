"""Horovod's life: build and install it, start it, shut it down."""

"""All-reduce, broadcast, gather and barrier on the backend's tensors."""

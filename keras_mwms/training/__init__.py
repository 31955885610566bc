"""What is hooked into a model and its optimizers."""

"""Who takes part in the training. Imports no framework and no Horovod."""

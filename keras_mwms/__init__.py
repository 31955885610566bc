"""Synchronous data-parallel training on several workers for Keras 3."""

from keras_mwms.version import __version__ as __version__

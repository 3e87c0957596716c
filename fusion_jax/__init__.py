"""Layer fusion for neural machine translation, in JAX."""

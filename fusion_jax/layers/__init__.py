"""Parts of a Transformer that know nothing of fusion."""

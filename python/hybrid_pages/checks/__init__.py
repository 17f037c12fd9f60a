"""Rules about settings that silently cost hits or safety, for ``hybrid-pages doctor`` and the
connector."""

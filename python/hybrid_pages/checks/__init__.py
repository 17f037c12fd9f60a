"""What silently costs hits or safety: rules of ``hybrid-pages doctor`` and the connector."""

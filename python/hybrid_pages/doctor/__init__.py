"""``hybrid-pages doctor``: finds what silently costs hits or safety, and how to fix it."""

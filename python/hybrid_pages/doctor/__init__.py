"""``hybrid-pages doctor``: what silently costs hits or safety, and how to fix it."""

"""Settings and configurations: what is accepted, and what names the model."""

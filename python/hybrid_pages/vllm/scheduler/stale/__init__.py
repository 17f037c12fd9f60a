"""Bytes that must not be published: outdated, of a reloaded LoRA, or invalid."""

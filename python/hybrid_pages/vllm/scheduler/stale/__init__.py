"""Bytes that must not be published: old, of a reloaded LoRA adapter, or invalid."""

"""The main job on a real engine, shown."""

"""The processes of an engine: engine cores, ranks, and which share a machine."""

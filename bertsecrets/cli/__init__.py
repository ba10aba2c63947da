"""The commands: read the configuration, build the objects, run, and report."""

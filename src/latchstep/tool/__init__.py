"""Tools: what a model may ask for, each in one file, all behind `base.Tool`."""

"""Models: each wire in one file, each wrapper in one file, all behind `base.Model`."""

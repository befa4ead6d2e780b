"""latchstep: an agent loop in which every step latches."""

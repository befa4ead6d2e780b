"""The pure core: what was said, what happened, what it adds up to, what must happen next.

No clock, file, socket, task or randomness is reached from here.
"""

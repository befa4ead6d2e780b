"""Tools: what a model may ask for, each in one file, all behind `base.Tool`.

The package is callable: `latchstep.tool` is this package and the decorator `define.tool` at once, whichever
of the two was imported first (docs/decisions/0003).
"""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from .define import tool

        return tool(*args, **kwargs)


sys.modules[__name__].__class__ = _Package

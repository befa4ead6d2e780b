"""Models: each wire in one file, each wrapper in one file, all behind `base.Model`.

The package is callable: `latchstep.model` is this package and the function `catalog.model` at once,
whichever of the two was imported first (docs/decisions/0003).
"""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from .catalog import model

        return model(*args, **kwargs)


sys.modules[__name__].__class__ = _Package

"""How long an engine keeps what it was given as its owner."""

import gc
import weakref


class Owner:
    """Anything that holds an engine's memory."""


def check_owner_is_kept(make, close):
    """The owner lives until the engine is closed, or dropped without being closed.

    Args:
        make: makes an engine with these owners.
        close: closes an engine.
    """
    for let_go in (close, lambda engine: None):
        owner = Owner()
        gone = weakref.ref(owner)
        engine = make(owners=[owner])
        del owner
        gc.collect()
        assert gone() is not None
        let_go(engine)
        del engine
        gc.collect()
        assert gone() is None

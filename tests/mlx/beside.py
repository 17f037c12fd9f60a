"""A stock server and ours, with one model: what a case gives on each is compared."""

from contextlib import contextmanager

import cases
import tiny
from http_server import VLLM_MLX, serving


@contextmanager
def stock_and_ours(name, folder):
    """Both servers of a tiny model, until the block ends."""
    model = tiny.save(name, folder / "model", tiny.THINKING)
    with (
        serving(model, folder / "stock.log", ours=False) as stock,
        serving(model, folder / "ours.log", "--host-gb", "0.5", ours=True) as ours,
    ):
        yield stock, ours
        assert "could not" not in ours.logged()
        assert f"{'vllm-mlx' if VLLM_MLX else 'mlx-lm'}'s own cache" not in ours.logged()


def require_equal_texts_and_no_less_reuse(servers, case):
    stock, ours = (cases.CASES[case](server) for server in servers)
    for index, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
        (text, reused, count), (expected, least, whole) = mine, theirs
        assert (text, count) == (expected, whole), (index, mine, theirs)
        assert reused >= least, (index, mine, theirs)

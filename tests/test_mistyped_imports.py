"""A mistyped name of anything public is answered with the nearest right one."""

from __future__ import annotations

import pytest

import structured_init


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("from structured_init import Mimetick", "structured_init has no 'Mimetick': did you mean 'Mimetic'"),
        ("from callbacks import InitCallbak", "callbacks has no 'InitCallbak': did you mean 'InitCallback'"),
        ("from lightning_modules import ImageClasifier", "lightning_modules has no 'ImageClasifier': did you mean"),
    ],
)
def test_a_mistyped_import_is_answered_with_the_nearest(line, answer):
    with pytest.raises(ImportError, match=answer):
        exec(line)
    assert not hasattr(structured_init, "Mimetick")

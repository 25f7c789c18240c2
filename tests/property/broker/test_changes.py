"""Applying changes twice, or on top of an image read while they were being made, is harmless."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from logbus_broker.cluster.metadata_image import LoggedChange, MetadataImage, apply

from tests.support import images

histories = st.lists(images.logged_change, max_size=30)


@given(histories)
def test_changes_that_were_applied_are_no_news(changes: list[LoggedChange]) -> None:
    image = MetadataImage()
    for change in changes:
        image, _ = apply(image, [change])
        assert apply(image, [change])[1] == ()


@given(histories)
def test_together_or_one_by_one_is_the_same(changes: list[LoggedChange]) -> None:
    one_by_one = MetadataImage()
    told = []
    for change in changes:
        one_by_one, news = apply(one_by_one, [change])
        told += news
    assert apply(MetadataImage(), changes) == (one_by_one, tuple(told))

"""Topics deleted according to the cluster's image: each coordinator forgets what its groups have committed for them.

Offsets that a coordinator has not loaded yet when a topic is deleted are forgotten with the next sweep.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.coordination.changes import DeletionAsked, TopicGone
from broker.coordination.follow import News
from broker.coordination.image import Image
from broker.handlers.commits import remove_offsets_of_topics
from broker.handlers.context import Context

logger = logging.getLogger("broker.groups")


def forget_offsets(context: Context, image: Image, news: News) -> None:
    """The image has changed."""
    names = {change.topic for change in news.changes if isinstance(change, DeletionAsked | TopicGone)}
    if names or news.is_everything:
        is_gone = _is_gone_from(image) if news.is_everything else names.__contains__
        context.chores.begin(remove_offsets_of_topics(is_gone, context), _failed)


def _is_gone_from(image: Image) -> Callable[[str], bool]:
    return lambda topic: topic not in image.topics or topic in image.deleting


def _failed() -> None:
    """Called inside an exception handler."""
    logger.exception("the offsets of deleted topics could not be forgotten; this is a defect of the broker")

"""Send records to a topic, and succeed only once the broker has acknowledged all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from airflow.sdk import BaseOperator, Context

from logbus import errors, task_context
from logbus.hooks.broker import BrokerHook

Records = Iterable[Any] | Callable[..., Iterable[Any]]


class ProduceOperator(BaseOperator):
    """Send `records` to `topic`, in order, with an idempotent producer and acks=all.

    A retried task sends everything again, so what a failed try stored is then in the topic twice. Give records a key or an id by
    which readers recognize duplicates (`{{ run_id }}` in a header), or use `logbus ship`, which resumes where the topic ends.

    Returns how many records each partition took, and their first and last offsets. The first record that fails fails the task,
    and the error names it.

    :param topic: must exist; templated.
    :param records: a list (templated), or a function that is called with `op_kwargs` and returns records. Each is a value (text,
        bytes, or anything that JSON can hold) or a mapping with `value` and any of `key`, `headers`, `timestamp`, `partition`.
    """

    template_fields: Sequence[str] = ("topic", "records", "op_kwargs", "kafka_conn_id")
    ui_color = "#e4e0f4"

    def __init__(
        self,
        *,
        topic: str,
        records: Records,
        op_kwargs: Mapping[str, Any] | None = None,
        kafka_conn_id: str = BrokerHook.default_conn_name,
        kafka_config_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(records, Iterator):
            raise errors.UserError(
                "records is an iterator, which a retry would find exhausted: pass a list, or the function that creates it"
            )
        self.topic = topic
        # Airflow calls a function that it finds in a templated attribute, with arguments of its own.
        self._make_records = records if callable(records) else None
        self.records = None if callable(records) else records
        self.op_kwargs = op_kwargs
        self.kafka_conn_id = kafka_config_id or kafka_conn_id

    @cached_property
    def broker(self) -> BrokerHook:
        return BrokerHook(self.kafka_conn_id)

    def execute(self, context: Context) -> dict[str, Any]:
        self.broker.log_offsets().topic(self.topic)  # a producer would wait half a minute for one that does not exist
        records = self.records if self._make_records is None else self._make_records(**(self.op_kwargs or {}))
        if isinstance(records, (str, bytes, Mapping)):
            raise errors.UserError("records is one record: put it into a list")
        if records is None:
            raise errors.UserError("records is None: the function or task that provides them returned nothing, or was skipped")
        done = self.broker.produce(self.topic, records)
        self.log.info("%d records stored in topic %s: %s", done["records"], self.topic, done["partitions"])
        return task_context.bounded_details([done])[0]

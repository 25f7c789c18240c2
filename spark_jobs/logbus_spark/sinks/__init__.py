"""Sinks, as a task sees them: what takes the rows. The driver's side, under the same names, is `logbus.loads.sinks`.

Each is a class in a module of the sink's name (`postgres.PostgresTaskSink`), imported only when a job uses it, so no worker pays
for another sink's libraries. `PostgresTaskSink(job, schema, task)` is the `TaskSink` (in logbus_spark.load_task) of one task
attempt; `schema` is that of the parser's columns.

A sink is a context manager. Everything a task writes is one unit of work: it counts if the sink is exited without an error, and
leaves nothing that counts otherwise. Spark may run a task twice, so what a task writes carries a mark of its own (the number of
the transaction, the names of the files), which the task reports; the driver takes what the winners wrote.
"""

"""Sinks, as a task sees them: what takes the rows. The driver's side, under the same names, is `logbus.loads.sinks`.

Each is a module of the sink's name, imported only when a job uses it, so no worker pays for another sink's libraries. Its
`task_sink(job, columns, task)` makes the `TaskSink` (spark_jobs/logbus_spark/load_task.py) of one task attempt.

A sink is a context manager. Everything a task writes is one unit of work: it counts if the sink is exited without an error, and
leaves nothing that counts otherwise. Spark may run a task twice, so what a task writes is tagged with the task attempt; the
driver takes what the winners wrote.
"""

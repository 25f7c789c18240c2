-- The ledger of schema_version 1, as the logbus from before the revisions made it.
create schema logbus;
create schema logbus_staging;
create schema logbus_leaf;
CREATE TABLE logbus.pipeline (
    name TEXT NOT NULL,
    topic TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    table_name TEXT NOT NULL,
    parse TEXT NOT NULL,
    interval INTERVAL NOT NULL,
    lateness INTERVAL NOT NULL,
    starts_at TIMESTAMP WITH TIME ZONE,
    isolation_level TEXT NOT NULL,
    settings JSONB NOT NULL,
    registered_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (name),
    UNIQUE (table_name)
);
CREATE TABLE logbus.schema_version (
    version INTEGER NOT NULL,
    PRIMARY KEY (version)
);
CREATE TABLE logbus.anchor (
    pipeline TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    at TIMESTAMP WITH TIME ZONE,
    "offset" BIGINT NOT NULL,
    frozen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (pipeline, topic_id, partition),
    FOREIGN KEY(pipeline) REFERENCES logbus.pipeline (name)
);
CREATE TABLE logbus.boundary (
    pipeline TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    partition INTEGER NOT NULL,
    at TIMESTAMP WITH TIME ZONE NOT NULL,
    "offset" BIGINT NOT NULL,
    leader_epoch INTEGER,
    frozen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    PRIMARY KEY (pipeline, topic_id, partition, at),
    FOREIGN KEY(pipeline) REFERENCES logbus.pipeline (name)
);
CREATE TABLE logbus."window" (
    id BIGINT GENERATED ALWAYS AS IDENTITY,
    pipeline TEXT NOT NULL,
    topic_id TEXT NOT NULL,
    starts_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ends_at TIMESTAMP WITH TIME ZONE NOT NULL,
    head_unknown BOOLEAN DEFAULT 'false' NOT NULL,
    frozen_at TIMESTAMP WITH TIME ZONE NOT NULL,
    last_attempt INTEGER DEFAULT '0' NOT NULL,
    loaded_attempt INTEGER,
    loaded_at TIMESTAMP WITH TIME ZONE,
    read_count BIGINT,
    loaded_count BIGINT,
    dead_lettered_count BIGINT,
    filtered_count BIGINT,
    late_count BIGINT,
    early_count BIGINT,
    lost_count BIGINT,
    byte_count BIGINT,
    fingerprint TEXT,
    audited_at TIMESTAMP WITH TIME ZONE,
    audit_problems JSONB,
    PRIMARY KEY (id),
    UNIQUE (pipeline, starts_at),
    FOREIGN KEY(pipeline) REFERENCES logbus.pipeline (name)
);
CREATE TABLE logbus.attempt (
    window_id BIGINT NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    run_id TEXT NOT NULL,
    try_number INTEGER NOT NULL,
    staging_table TEXT NOT NULL,
    dead_letter_table TEXT NOT NULL,
    cleaned BOOLEAN DEFAULT 'false' NOT NULL,
    began_at TIMESTAMP WITH TIME ZONE NOT NULL,
    heartbeat_at TIMESTAMP WITH TIME ZONE NOT NULL,
    ended_at TIMESTAMP WITH TIME ZONE,
    error TEXT,
    PRIMARY KEY (window_id, number),
    FOREIGN KEY(window_id) REFERENCES logbus."window" (id)
);
CREATE TABLE logbus.dead_letter (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    "offset" BIGINT NOT NULL,
    window_id BIGINT NOT NULL,
    timestamp TIMESTAMP WITH TIME ZONE,
    key BYTEA,
    value BYTEA,
    headers JSONB,
    error_class TEXT NOT NULL,
    error TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    fingerprint BIGINT NOT NULL,
    PRIMARY KEY (partition, "offset", window_id),
    FOREIGN KEY(window_id) REFERENCES logbus."window" (id)
);
CREATE TABLE logbus.window_range (
    window_id BIGINT NOT NULL,
    partition INTEGER NOT NULL,
    start_offset BIGINT NOT NULL,
    end_offset BIGINT NOT NULL,
    lost BIGINT DEFAULT '0' NOT NULL,
    first_timestamp TIMESTAMP WITH TIME ZONE,
    last_timestamp TIMESTAMP WITH TIME ZONE,
    PRIMARY KEY (window_id, partition),
    FOREIGN KEY(window_id) REFERENCES logbus."window" (id)
);
insert into logbus.schema_version values (1);

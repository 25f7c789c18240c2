{{
    config(
        materialized="incremental",
        incremental_strategy="microbatch",
        event_time="_window_start",
        batch_size="hour",
        begin="2015-01-01",
        lookback=0,
        unique_key=["_window_start", "url"],
    )
}}

select _window_start, url, count(*) as views, count(distinct visitor) as visitors
from {{ source("logbus", "page_views") }}
group by _window_start, url

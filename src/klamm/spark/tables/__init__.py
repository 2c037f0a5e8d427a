"""Topics as tables: Delta through deltalake, exactly once, without a jar.

Executors write Parquet files (`parquet_files`). The driver commits the list of a batch's files together with the
query's id and the batch's number (`commits`), so a batch that is repeated after a crash is recognised and not committed
twice. `delta` is the sink, `to_table` in `write` starts a query into it, `read` reads a table back, `maintenance`
merges and removes files, `table_definition` and `sync` implement `klamm table`.
"""

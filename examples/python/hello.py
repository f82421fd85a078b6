from google.cloud import bigtable
from google.cloud.bigtable.data import BigtableDataClient, ReadRowsQuery, SetCell
from google.cloud.bigtable.data.read_rows_query import RowRange

admin = bigtable.Client(project="my-project", admin=True)
table = admin.instance("my-instance").table("hello-python")
if not table.exists():
    table.create(column_families={"cf": None})

with BigtableDataClient(project="my-project") as client:
    with client.get_table("my-instance", "hello-python") as table:
        table.mutate_row("greeting#1", SetCell("cf", "text", "Hello from Python"))
        for row in table.read_rows(ReadRowsQuery(row_ranges=RowRange("greeting#", "greeting$"))):
            print(row.row_key.decode(), row["cf", "text"][0].value.decode())

package main

import (
	"context"
	"fmt"
	"log"

	"cloud.google.com/go/bigtable"
)

func main() {
	ctx := context.Background()

	admin, err := bigtable.NewAdminClient(ctx, "my-project", "my-instance")
	if err != nil {
		log.Fatal(err)
	}
	defer admin.Close()
	admin.CreateTable(ctx, "hello-go") // an error if it is there already: let it be
	admin.CreateColumnFamily(ctx, "hello-go", "cf")

	client, err := bigtable.NewClient(ctx, "my-project", "my-instance")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	table := client.Open("hello-go")

	mutation := bigtable.NewMutation()
	mutation.Set("cf", "text", bigtable.Now(), []byte("Hello from Go"))
	if err := table.Apply(ctx, "greeting#1", mutation); err != nil {
		log.Fatal(err)
	}

	err = table.ReadRows(ctx, bigtable.PrefixRange("greeting#"), func(row bigtable.Row) bool {
		fmt.Printf("%s: %s\n", row.Key(), row["cf"][0].Value)
		return true
	}, bigtable.RowFilter(bigtable.LatestNFilter(1)))
	if err != nil {
		log.Fatal(err)
	}
}

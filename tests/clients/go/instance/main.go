// Makes an instance with two clusters on the server that BIGTABLE_EMULATOR_HOST names:
//
//	go run ./instance PROJECT INSTANCE CLUSTER CLUSTER
package main

import (
	"context"
	"log"
	"os"
	"time"

	"cloud.google.com/go/bigtable"
)

func main() {
	if len(os.Args) != 5 {
		log.Fatal("usage: instance PROJECT INSTANCE CLUSTER CLUSTER")
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	admin, err := bigtable.NewInstanceAdminClient(ctx, os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer admin.Close()
	err = admin.CreateInstanceWithClusters(ctx, &bigtable.InstanceWithClustersConfig{
		InstanceID:  os.Args[2],
		DisplayName: os.Args[2],
		Clusters: []bigtable.ClusterConfig{
			{ClusterID: os.Args[3], Zone: "us-central1-b", NumNodes: 1, StorageType: bigtable.SSD},
			{ClusterID: os.Args[4], Zone: "us-east1-c", NumNodes: 1, StorageType: bigtable.SSD},
		},
	})
	if err != nil {
		log.Fatal(err)
	}
}

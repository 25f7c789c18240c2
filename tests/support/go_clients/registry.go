package main

import (
	"context"
	"encoding/json"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/sr"
)

// asksRegistry registers the lines, each a schema, as versions of the subject TOPIC, and returns the texts that their ids lead to.
func asksRegistry(texts []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := sr.NewClient(sr.URLs(os.Getenv("REGISTRY")))
	check(err)
	var stored []string
	for number, text := range texts {
		created, err := client.CreateSchema(ctx, topic, sr.Schema{Schema: text})
		check(err)
		looked, err := client.LookupSchema(ctx, topic, sr.Schema{Schema: text})
		check(err)
		if created.Version != number+1 || looked.ID != created.ID {
			panic(looked)
		}
		byID, err := client.SchemaByID(ctx, created.ID)
		check(err)
		stored = append(stored, byID.Schema)
	}
	versions, err := client.SubjectVersions(ctx, topic)
	check(err)
	levels := client.SetCompatibility(ctx, sr.SetCompatibility{Level: sr.CompatFull}, topic)
	check(levels[0].Err)
	compatible, err := client.CheckCompatibility(ctx, topic, -1, sr.Schema{Schema: `"string"`})
	check(err)
	gone, err := client.DeleteSubject(ctx, topic, sr.SoftDelete)
	check(err)
	said, err := json.Marshal(map[string]any{"versions": versions, "compatible": compatible.Is, "deleted": gone})
	check(err)
	return append(stored, string(said))
}

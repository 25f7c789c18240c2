// Two Kafka clients in Go, which log in by SCRAM over TLS: `go_clients sarama|franz`; with `registry`, one of schema registries (registry.go).
// The lines of standard input are written to partition 0 of a topic and as many are read back; settings, in librdkafka's names, are one
// JSON object in SETTINGS, the topic is TOPIC.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	xdg "github.com/xdg-go/scram"
)

var (
	settings map[string]string
	topic    = os.Getenv("TOPIC")
)

func main() {
	log.SetFlags(0)
	check(json.Unmarshal([]byte(os.Getenv("SETTINGS")), &settings))
	var values []string
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		values = append(values, lines.Text())
	}
	roundtrip := map[string]func([]string) []string{"sarama": withSarama, "franz": withFranz, "registry": asksRegistry}[os.Args[1]]
	for _, value := range roundtrip(values) {
		fmt.Println(value)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func trusted() *tls.Config {
	pem, err := os.ReadFile(settings["ssl.ca.location"])
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool}
}

func withFranz(values []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	login := scram.Auth{User: settings["sasl.username"], Pass: settings["sasl.password"]}
	mechanism := login.AsSha512Mechanism()
	if settings["sasl.mechanism"] == "SCRAM-SHA-256" {
		mechanism = login.AsSha256Mechanism()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(settings["bootstrap.servers"]),
		kgo.DialTLSConfig(trusted()),
		kgo.SASL(mechanism),
		kgo.AllowAutoTopicCreation(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}),
	)
	check(err)
	defer client.Close()
	check(client.Ping(ctx))
	for _, value := range values {
		check(client.ProduceSync(ctx, &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr())
	}
	var found []string
	for len(found) < len(values) {
		fetched := client.PollFetches(ctx)
		check(fetched.Err())
		fetched.EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return found
}

// Conversation is what sarama asks of a SCRAM implementation.
type conversation struct {
	*xdg.ClientConversation
	hash xdg.HashGeneratorFcn
}

func (c *conversation) Begin(user, password, authzID string) error {
	client, err := c.hash.NewClient(user, password, authzID)
	if err == nil {
		c.ClientConversation = client.NewConversation()
	}
	return err
}

func withSarama(values []string) []string {
	hash := xdg.SHA512
	if settings["sasl.mechanism"] == "SCRAM-SHA-256" {
		hash = xdg.SHA256
	}
	config := sarama.NewConfig()
	config.Net.TLS.Enable, config.Net.TLS.Config = true, trusted()
	config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLMechanism(settings["sasl.mechanism"])
	config.Net.SASL.User, config.Net.SASL.Password = settings["sasl.username"], settings["sasl.password"]
	config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	client, err := sarama.NewClient([]string{settings["bootstrap.servers"]}, config)
	check(err)
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	for _, value := range values {
		_, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: topic, Value: sarama.StringEncoder(value)})
		check(err)
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	check(err)
	reading, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
	check(err)
	var found []string
	for message := range reading.Messages() {
		if found = append(found, string(message.Value)); len(found) == len(values) {
			break
		}
	}
	return found
}

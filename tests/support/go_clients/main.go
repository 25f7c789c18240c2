// Two Kafka clients in Go: `go_clients sarama|franz`; with `registry`, one of schema registries (registry.go). The lines of standard
// input are written to the partitions of a topic in turn, and as many are read back; settings, in librdkafka's names, are one JSON
// object in SETTINGS, the topic is TOPIC. They log in by SCRAM over TLS if there is a password. With GROUP the lines are read by a
// member of it at the same time, each sent after a PAUSE.
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
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
	xdg "github.com/xdg-go/scram"
)

var (
	settings map[string]string
	topic    = os.Getenv("TOPIC")
	group    = os.Getenv("GROUP")
	pause, _ = time.ParseDuration(os.Getenv("PAUSE"))
	servers  []string
)

func main() {
	log.SetFlags(0)
	check(json.Unmarshal([]byte(os.Getenv("SETTINGS")), &settings))
	servers = strings.Split(settings["bootstrap.servers"], ",")
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

// Values in turn to each of PARTITIONS, by default one.
func partition(number int) int32 {
	count, _ := strconv.Atoi(os.Getenv("PARTITIONS"))
	return int32(number % max(count, 1))
}

// Reads until each value was there, some perhaps twice.
func readAll(values []string, next func() string) []string {
	unread := map[string]bool{}
	for _, value := range values {
		unread[value] = true
	}
	var found []string
	for len(unread) > 0 {
		value := next()
		delete(unread, value)
		found = append(found, value)
	}
	return found
}

func trusted() *tls.Config {
	pem, err := os.ReadFile(settings["ssl.ca.location"])
	check(err)
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem)
	return &tls.Config{RootCAs: pool}
}

func withFranz(values []string) []string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	options := []kgo.Opt{
		kgo.SeedBrokers(servers...),
		kgo.AllowAutoTopicCreation(),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	}
	if settings["sasl.password"] != "" {
		login := scram.Auth{User: settings["sasl.username"], Pass: settings["sasl.password"]}
		mechanism := login.AsSha512Mechanism()
		if settings["sasl.mechanism"] == "SCRAM-SHA-256" {
			mechanism = login.AsSha256Mechanism()
		}
		options = append(options, kgo.DialTLSConfig(trusted()), kgo.SASL(mechanism))
	}
	if group != "" {
		start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
		options = append(options, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), start)
	} else {
		options = append(options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	}
	client, err := kgo.NewClient(options...)
	check(err)
	defer client.Close()
	check(client.Ping(ctx))
	send := func() {
		for number, value := range values {
			record := &kgo.Record{Topic: topic, Partition: partition(number), Value: []byte(value)}
			check(client.ProduceSync(ctx, record).FirstErr())
			time.Sleep(pause)
		}
	}
	if group == "" {
		send()
	} else {
		go send()
	}
	var fetched []*kgo.Record
	return readAll(values, func() string {
		for len(fetched) == 0 {
			polled := client.PollFetches(ctx)
			check(polled.Err())
			fetched = polled.Records()
		}
		record := fetched[0]
		fetched = fetched[1:]
		return string(record.Value)
	})
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
	config := sarama.NewConfig()
	if settings["sasl.password"] != "" {
		hash := xdg.SHA512
		if settings["sasl.mechanism"] == "SCRAM-SHA-256" {
			hash = xdg.SHA256
		}
		config.Net.TLS.Enable, config.Net.TLS.Config = true, trusted()
		config.Net.SASL.Enable, config.Net.SASL.Mechanism = true, sarama.SASLMechanism(settings["sasl.mechanism"])
		config.Net.SASL.User, config.Net.SASL.Password = settings["sasl.username"], settings["sasl.password"]
		config.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: hash} }
	}
	config.Producer.Return.Successes = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Idempotent, config.Net.MaxOpenRequests = group != "", 1
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	client, err := sarama.NewClient(servers, config)
	check(err)
	defer client.Close()
	producer, err := sarama.NewSyncProducerFromClient(client)
	check(err)
	send := func() {
		for number, value := range values {
			message := &sarama.ProducerMessage{Topic: topic, Partition: partition(number), Value: sarama.StringEncoder(value)}
			_, _, err := producer.SendMessage(message)
			check(err)
			time.Sleep(pause)
		}
	}
	if group == "" {
		send()
		consumer, err := sarama.NewConsumerFromClient(client)
		check(err)
		reading, err := consumer.ConsumePartition(topic, 0, sarama.OffsetOldest)
		check(err)
		return readAll(values, func() string { return string((<-reading.Messages()).Value) })
	}
	go send()
	members, err := sarama.NewConsumerGroupFromClient(group, client)
	check(err)
	received := make(member)
	go func() {
		for { // until the process ends; each call is one generation
			check(members.Consume(context.Background(), []string{topic}, received))
		}
	}()
	return readAll(values, func() string { return <-received })
}

// Member is what sarama asks of a consumer in a group.
type member chan string

func (m member) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (m member) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (m member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		m <- string(message.Value)
		session.MarkMessage(message, "")
	}
	return nil
}

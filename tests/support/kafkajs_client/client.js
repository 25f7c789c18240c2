// KafkaJS, logging in by SCRAM over TLS: writes the lines of standard input to partition 0 of TOPIC and reads as many back. SETTINGS
// are librdkafka's, as one JSON object.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const settings = JSON.parse(process.env.SETTINGS)
const topic = process.env.TOPIC
const values = fs.readFileSync(0, 'utf8').split('\n').filter(Boolean)
const kafka = new Kafka({
  brokers: [settings['bootstrap.servers']],
  ssl: { ca: [fs.readFileSync(settings['ssl.ca.location'], 'utf8')] },
  sasl: {
    mechanism: settings['sasl.mechanism'].toLowerCase(),
    username: settings['sasl.username'],
    password: settings['sasl.password'],
  },
  logLevel: logLevel.NOTHING,
  retry: { retries: 2 },
})

async function roundtrip() {
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages: values.map((value) => ({ value, partition: 0 })) })
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId: `${topic}-group` })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const found = []
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    const eachMessage = async ({ message }) => {
      if (found.push(message.value.toString()) === values.length) resolve()
    }
    consumer.run({ eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  console.log(found.join('\n'))
}

roundtrip().catch((error) => {
  console.error(`${error.name}: ${error.message}`)
  process.exit(1)
})

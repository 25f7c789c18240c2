// KafkaJS: writes the lines of standard input to the PARTITIONS of TOPIC in turn and reads as many back; SETTINGS are librdkafka's, as
// one JSON object. It logs in by SCRAM over TLS if there is a password. With GROUP, lines are read by a member of it at the same time,
// each sent after a PAUSE, and all else is KafkaJS's default.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const settings = JSON.parse(process.env.SETTINGS)
const topic = process.env.TOPIC
const values = fs.readFileSync(0, 'utf8').split('\n').filter(Boolean)
const { GROUP: group, PAUSE: pause = '0', PARTITIONS: partitions = '1' } = process.env
const login = {
  ssl: settings['ssl.ca.location'] && { ca: [fs.readFileSync(settings['ssl.ca.location'], 'utf8')] },
  sasl: {
    mechanism: (settings['sasl.mechanism'] || '').toLowerCase(),
    username: settings['sasl.username'],
    password: settings['sasl.password'],
  },
  retry: { retries: 2 },
}
const kafka = new Kafka({
  brokers: settings['bootstrap.servers'].split(','),
  logLevel: logLevel.NOTHING,
  ...(settings['sasl.password'] ? login : {}),
})

async function send() {
  const producer = kafka.producer({ idempotent: Boolean(group), maxInFlightRequests: group ? 1 : null })
  await producer.connect()
  const messages = values.map((value, number) => ({ value, partition: number % partitions }))
  if (group) {
    for (const message of messages) {
      await producer.send({ topic, messages: [message] })
      await new Promise((resolve) => setTimeout(resolve, parseInt(pause)))
    }
  } else {
    await producer.send({ topic, messages })
  }
  await producer.disconnect()
}

async function receive() {
  const consumer = kafka.consumer({ groupId: group || `${topic}-group` })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  const found = []
  const unread = new Set(values)
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error))
    const eachMessage = async ({ message }) => {
      const value = message.value.toString()
      found.push(value)
      if (unread.delete(value) && !unread.size) resolve()
    }
    consumer.run({ eachMessage }).catch(reject)
  })
  await consumer.disconnect()
  return found
}

async function roundtrip() {
  if (!group) await send()
  const [found] = await Promise.all([receive(), group && send()])
  console.log(found.join('\n'))
}

roundtrip().catch((error) => {
  console.error(`${error.name}: ${error.message}`)
  process.exit(1)
})

/**
 * Requests and answers as they are on the wire. A test compares each of these types with the OpenAPI document of the
 * broker. Users meet them with the names of `camel.ts`.
 */

import type { Json } from "./canonical.js";

export type Status = { status: string };
export type Readiness = { status: string; clock_ahead_ms: number };
export type Version = { version: string; commit: string; wal_enabled: boolean };
export type Digest = { lsn: number; digest: string };

export type CreateTopic = { name: string; partitions?: number; retention_ms?: number; retention_bytes?: number };
export type ChangeTopic = { retention_ms?: number | null; retention_bytes?: number | null };
export type TopicChanged = { name: string; retention_ms: number | null; retention_bytes: number | null };
export type TopicCreated = TopicChanged & { status: "created"; partitions: number };
export type PartitionInfo = {
  partition: number;
  next_offset: number;
  messages: number;
  bytes: number;
  delayed: number;
};
export type ProgressInfo = {
  partition: number;
  floor: number | null;
  lag: number;
  in_flight: number;
  waiting: number;
  oldest_age_ms: number | null;
  blocked: string | null;
};
export type GroupInfo = {
  group: string;
  paused: boolean;
  consumers: number;
  skipped: number;
  partitions: ProgressInfo[];
};
export type TopicInfo = TopicChanged & { partitions: PartitionInfo[]; groups: GroupInfo[] };

export type RetryPolicy = { max_attempts?: number; backoff_ms?: number; max_backoff_ms?: number };
export type Envelope = {
  run_id?: string;
  step_id?: string;
  parent_step_id?: string;
  tenant_id?: string;
  idempotency_key?: string;
  target_topic?: string;
  partition_override?: number;
  deadline?: string;
  retry_policy?: RetryPolicy;
  priority?: number;
  deliver_at?: string;
  labels?: Record<string, string>;
  delay_ms?: number;
};
export type ProduceFields = { topic: string; key?: string; envelope?: Envelope };
export type Produce = ProduceFields & ({ value: string } | { value_base64: string });
export type RoutingRemark = "set_aside" | "failed";
export type Stored = {
  partition: number;
  offset: number;
  duplicate?: true;
  already_done?: true;
  routing?: RoutingRemark;
};
export type Produced = Stored & { status: "produced"; topic: string };
export type ProduceLine = (Stored & { status: 200; topic?: string }) | ErrorLine;
export type Completed = { produced: (Stored & { topic: string })[] };
export type CompletedLine = (Completed & { status: 200 }) | ErrorLine;

export type ErrorCode =
  | "INVALID_ARGUMENT"
  | "UNAUTHENTICATED"
  | "PERMISSION_DENIED"
  | "NOT_FOUND"
  | "METHOD_NOT_ALLOWED"
  | "FAILED_PRECONDITION"
  | "ALREADY_EXISTS"
  | "PAYLOAD_TOO_LARGE"
  | "IDEMPOTENCY_MISMATCH"
  | "RESOURCE_EXHAUSTED"
  | "UNAVAILABLE"
  | "STORAGE_FULL";
export type Refusal = {
  error: ErrorCode;
  message: string;
  reason?: string;
  decision?: "IN_PROGRESS";
  retry_after_ms?: number;
  group?: string;
  committed?: "no";
};
export type ErrorLine = Refusal & { status: number };

export type Consume = {
  topic: string;
  group: string;
  owner: string;
  lease_ms?: number;
  prefetch?: number;
  from?: "earliest" | "latest";
  release_on_disconnect?: boolean;
  ephemeral?: boolean;
  max?: number;
  wait_ms?: number;
};
export type Routing = { label: string; meta?: Record<string, string> };
export type DeadLetter = {
  original_topic: string;
  original_partition: number;
  original_offset: number;
  group: string;
  attempts: number;
  last_error: string;
  reason: "max_attempts" | "deadline_exceeded" | "non_retryable" | "payload_damaged";
  routed_at: string;
  first_offset: number;
  redrives: number;
  lost?: true;
  damage?: string;
  deadline?: string;
  retry_policy?: RetryPolicy;
};
export type ItemEnvelope = Omit<Envelope, "delay_ms"> & { dlq?: DeadLetter };
/** What a message has whether it is delivered or peeked at. */
export type StoredItem = {
  partition: number;
  offset: number;
  key: string;
  value?: string;
  value_base64?: string;
  routing?: Routing;
  envelope?: ItemEnvelope;
  trace?: string;
  lost?: true;
  redrives?: number;
  produced_at: string;
};
export type PeekedItem = StoredItem & { attempts: 0; failures: 0; last_error: "" };
export type Item = StoredItem & {
  attempts: number;
  failures: number;
  last_error: string;
  lease_token: string;
  lease_until: string;
};

export type MessageRef = { topic: string; group: string; partition: number; offset: number };
export type Claim = MessageRef & { owner: string; lease_token?: string };
export type Nack = Claim & { reason?: string; delay_ms?: number; retryable?: boolean };
export type Extend = Claim & { lease_ms: number };
export type Complete = MessageRef & {
  owner: string;
  lease_token: string;
  result?: Json;
  produce?: Produce[];
  status?: "SUCCEEDED" | "SUCCESS" | "FAILED_FINAL";
  dead_letter?: boolean;
  last_error?: string;
};
export type LeaseExtended = { lease_until: string };

export type GroupRef = { topic: string; group: string };
export type CreateGroup = GroupRef & { from?: "earliest" | "latest" };
export type GroupCreated = GroupRef & { status: "created" };
export type Seek = GroupRef & { to: "earliest" | "latest" | { offset: number } | { time: string } };
export type Groups = { groups: string[]; skipped: Record<string, number> };
export type Redrive = { topic: string; offsets?: number[]; all?: boolean; limit?: number };

export type Scope =
  | { kind: "consume"; topic: string; group: string }
  | { kind: "tenant" }
  | { kind: "job"; id: string }
  | { kind: "task"; id: string }
  | { kind: "rpc"; principal: string; method: string };
export type Identity = { tenant_id?: string; scope: Scope; key: string };
export type DeliveryRef = { partition: number; offset: number; lease_token: string };
export type Begin = Identity & {
  owner: string;
  lease_ms?: number;
  ttl_ms?: number;
  expires_at?: string;
  request_hash?: string;
  on_expired?: "take_over" | "takeover" | "report";
  delivery?: DeliveryRef;
};
export type Finish = Identity & {
  lease_token: string;
  status: "SUCCEEDED" | "SUCCESS" | "FAILED_FINAL" | "FAILED_RETRYABLE" | "FAILURE";
  response_code?: number;
  result?: Json;
  last_error?: string;
  dead_letter?: boolean;
  delivery?: DeliveryRef;
};
export type Reacquire = Identity & { owner: string; lease_ms?: number };
export type Renew = Identity & { lease_token: string; lease_ms?: number };

export type EffectStatus = "IN_PROGRESS" | "SUCCEEDED" | "FAILED_FINAL" | "FAILED_RETRYABLE";
export type StatusV1 = "PENDING" | "COMMITTED" | "FAILED";
export type Execute = {
  decision: "EXECUTE";
  attempt: number;
  lease_token: string;
  lease_until: string;
  status: "IN_PROGRESS";
  status_v1: "PENDING";
  idempotent: boolean;
};
export type Replay = {
  decision: "REPLAY";
  status: "SUCCEEDED" | "FAILED_FINAL";
  status_v1: StatusV1;
  response_code: number;
  result: Json;
  result_lost?: true;
  last_error: string;
};
export type Retryable = {
  decision: "RETRYABLE";
  attempt: number;
  last_error: string;
  status: "IN_PROGRESS" | "FAILED_RETRYABLE";
  status_v1: StatusV1;
};
export type Begun = Execute | Replay | Retryable;
export type Effect = {
  status: EffectStatus;
  status_v1: StatusV1;
  attempt: number;
  owner: string;
  lease_until: string | null;
  result: Json;
  result_lost?: true;
  response_code: number;
  last_error: string;
  request_hash: string | null;
  updated_at: string;
  expires_at: string;
};
export type EffectPage = {
  records: (Effect & { tenant_id: string; scope: Scope; key: string })[];
  next: string | null;
};

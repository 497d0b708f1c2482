/**
 * Types for the checker: what modules pass to each other, then the shapes of docs/inspector_api.md. They are known in
 * every module. The page does not load this file.
 */

// --- ui.js

/** What an element can contain. */
type Child = Node | string | number | null | undefined | false | Child[];
/** Functions are listeners; null, undefined and false leave an attribute out. */
type Attributes = { [name: string]: string | number | boolean | null | undefined | ((event: any) => void) };
type Icon = import("./icon.js").Icon;

// --- state.js

/** Those that are null or empty are left out. */
type Params = { [name: string]: string | number | null | undefined };
/** `id` is that of a request, or empty. */
type Route = { view: (typeof import("./route.js").VIEWS)[number]; id: string; tab: string; params: URLSearchParams };
type Part = "frame" | "status" | "route" | "list";

/** A view, or a part of one. */
interface View {
  element: HTMLElement;
  update?(): void; // the address has changed, and the view stays
  close?(): void;
  onKey?(event: KeyboardEvent): boolean; // whether it was its key
  focusFilter?(): void;
}

// --- rows.js, virtual.js

interface Listener {
  row(row: Row): void;
  missed(): void;
}

interface Source {
  count(): number;
  key(index: number): string; // of one row only; while it stays the same, the row is not drawn again
  draw(index: number): HTMLElement;
  seen?(from: number, to: number): void; // the rows that are visible
}

// --- pictures.js

type Maybe = number | null | undefined;

/** Values at two places in pixels. */
type Scale = { from: number; to: number; left: number; right: number };
/** Whether a span of time is shown. */
type Seen = (from: number, to: number) => boolean;
/** A timeline from one time to another. A small one has no links and no names of marks. */
type Look = { width: number; from: number; to: number; attempts: Attempt[]; isSmall?: boolean };
/** `tone` is the number of its colour. */
type Series = { label: string; tone: number; values: (number | null)[] };

interface ChartOptions {
  title: string;
  isLines: boolean; // otherwise bars, which stand on each other
  times: number[]; // seconds since 1970
  step: number; // seconds
  series: Series[];
  format(value: number | null): string;
  total: string;
  hasLegend: boolean;
}

// --- tree.js, comparison.js, editor.js

type SideName = "client" | "upstream";

interface TreeOptions {
  label: string; // for screen readers
  path?: string; // of the value in its body
  cuts?: { path: string; length: number }[]; // strings that are not whole; paths relative to the value
  whole?(path: string): Promise<Json>; // loads a string that was cut
  mark?(path: string): string; // the class of a line, or empty
  pick?(path: string): void; // a marked line was chosen
}

/** What a comparison can ask for, and what it reports. */
interface ComparisonOptions {
  section?(number: number): Promise<Section>; // one that is too large for the first answer
  value?(side: SideName, path: string): Promise<Json>; // a string that was cut
  canonical?(): Promise<Canonical>;
  note?: number; // the one that is chosen at first
  place?: string | null; // of the client's body, that is shown at first
  onNote?(note: number | null): void;
  tools?(side: SideName): Child;
  head?: Child;
}

type Tone = "trouble" | "warn" | "note";
type Finding = [tone: Tone, sign: Child, rule: string, at: string, detail: string];
/** What happened to a request at a time. */
type Step = [t: number | null, sign: Icon, tone: string, ...content: Child[]];
/** The address of a part of a request. */
type To = (tab: string, params?: Params) => string;
type Block = { kind: string; name: string; text: string };

// --- docs/inspector_api.md

type Level = "off" | "meta" | "full";
type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

interface Recording {
  level: Level;
  configured: Level;
  bytes: number;
  most_bytes: number;
  hours: number;
  oldest: number | null;
  requests: number;
  dropped: number;
}

interface ServerState {
  version: string;
  gateway: { state: "running" | "gone"; instance?: string; pid?: number; url?: string; started_at?: number };
  recording: Recording;
  store: boolean;
  dialects: string[];
  upstreams: { name: string; dialect: string; health: string }[];
}

interface Row {
  id: string;
  at?: number | null;
  began: number;
  method: string;
  path: string;
  operation?: string;
  client?: string;
  key?: string;
  dialect?: string;
  upstream_dialect?: string;
  upstream?: string;
  credential?: string;
  model?: string;
  used_model?: string;
  session?: string;
  stream?: boolean;
  verbatim?: boolean;
  status?: number | null;
  outcome: string;
  stop?: string;
  error?: string;
  first_byte_ms?: number | null;
  total_ms?: number | null;
  attempts?: number;
  tried?: string[];
  input_tokens?: number | null;
  output_tokens?: number | null;
  cache_read_tokens?: number | null;
  cache_write_tokens?: number | null;
  tokens_estimated?: boolean | null;
  cache_share?: number | null;
  cost_nanodollars?: number | null;
  tools?: string[];
  notes?: number;
  rules?: string[];
  recorded?: "" | "meta" | "full";
  badges?: string[];
  seconds?: number; // of a request that runs
  state?: string;
}

interface Page {
  rows: Row[];
  until: string;
  offset: number;
  matched: number;
  total: number;
  cursor: string;
}

interface Completion {
  insert: string;
  from: number;
  to: number;
  detail: string;
}

interface FilterCheck {
  error: { message: string; at: number; length: number } | null;
  completions: Completion[];
  keys: { name: string; kind: string; detail: string }[];
}

interface Note {
  rule: string;
  action: "changed" | "dropped" | "added" | "renamed";
  at: string;
  detail: string;
  part: "request" | "response";
}

interface PlacedNote extends Note {
  client: string[];
  upstream: string[];
  sections: number[];
}

interface Attempt {
  number: number;
  upstream: string;
  dialect?: string;
  credential?: string;
  model?: string;
  began_ms?: number | null;
  sent_ms?: number | null;
  head_ms?: number | null;
  ended_ms?: number | null;
  url?: string | null;
  request_headers?: [string, string][];
  request_bytes?: number | null;
  status?: number | null;
  response_headers?: [string, string][];
  response_bytes?: number | null;
  outcome: "ok" | "failed" | "skipped";
  reason?: string;
  kind?: string;
  error?: string;
  answer?: string;
}

interface Details {
  row: Row;
  notes: Note[];
  attempts: Attempt[];
  session: { id: string; previous?: string | null; next?: string | null } | null;
  has: { client_body: boolean; upstream_body: boolean; frames: boolean; events: boolean };
  truncated: string[];
}

interface Side {
  path: string;
  bytes: number;
  value?: Json;
  cuts?: { path: string; length: number }[];
}

type SectionStatus = "same" | "changed" | "only client" | "only upstream";

interface Section {
  number: number;
  kind: "settings" | "system" | "tools" | "message" | "rest";
  title: string;
  status: SectionStatus;
  notes: number[];
  client: Side | null;
  upstream: Side | null;
  blocks: { kind: string; client: string | null; upstream: string | null; status: SectionStatus; notes: number[] }[];
}

interface Bodies {
  client: { dialect: string; bytes: number } | null;
  upstream: { dialect: string; bytes: number } | null;
  same_bytes: boolean;
  sections: Section[];
  notes: PlacedNote[];
  problem?: string;
  refusal?: string; // of a translation
}

interface Canonical {
  sections: { number: number; value: Json }[];
  translated: { number: number; value: Json }[];
}

interface Call {
  name: string;
  alias?: string | null;
  client_id?: string | null;
  upstream_id?: string | null;
  place: "history" | "answer";
  path: string;
  t?: number | null;
  arguments: string;
  tree?: Json;
  is_complete?: boolean;
  valid?: boolean | null;
  problems?: { at: string; detail: string }[];
  result?: { path: string; status: string; text: string; bytes: number; request?: string | null } | null;
  flags: string[];
}

interface Calls {
  calls: Call[];
  counts: { calls: number; unpaired: number };
}

interface Timeline {
  duration_ms: number;
  frames: { t: number[]; bytes: number[]; kind: string[]; attempt: number[] };
  events: { t: number[]; bytes: number[]; kind: string[] };
  links: [number, number, number][];
  silences: { from: number; to: number; lane: "upstream" | "client" }[];
  pings: number[];
  marks: { t: number; what: string }[];
  tools: { name: string; id: string; from: number; to: number; recovered: boolean }[];
  pieces: { t: number; key: number; kind: "text" | "thinking" | "tool" | "error"; name?: string; text: string }[];
  last_bytes?: { upstream?: string; client?: string } | null;
  is_cut: boolean;
  more?: number;
}

interface CacheUse {
  previous: string;
  side: "client" | "upstream";
  bytes: number;
  common: number;
  share: number;
  segments: { kind: string; bytes: number; common: number }[];
  difference: { path: string; before: string; after: string; at: number } | null;
  reported: { read?: number | null; written?: number | null; input?: number | null };
}

interface Breach {
  rule: string;
  at: string;
  detail: string;
  evidence: string;
  severity: "error" | "advice";
}

interface Played {
  bodies: Bodies | null;
  translated: string;
  notes: PlacedNote[];
  breaches: Breach[];
  upstream_breaches: Breach[];
  from: string;
  error: { message: string; at?: string } | null;
}

interface Replayed {
  status: number;
  same: boolean;
  differences: string[];
  answer: string;
}

interface Percentiles {
  p50: (number | null)[];
  p95: (number | null)[];
  p99: (number | null)[];
}

type Sum =
  | "requests"
  | "errors"
  | "input_tokens"
  | "output_tokens"
  | "cache_read_tokens"
  | "cache_write_tokens"
  | "cost_nanodollars"
  | "unpriced";

interface Group {
  name: string;
  label: string;
  requests: number[];
  errors: number[];
  input_tokens: number[];
  output_tokens: number[];
  cache_read_tokens: number[];
  cache_write_tokens: number[];
  cost_nanodollars: number[];
  unpriced: number[];
  first_byte_ms: Percentiles;
  total_ms: Percentiles;
}

interface Overview {
  source: "ledger" | "memory";
  from: number;
  to: number;
  step: number;
  by: string;
  times: number[];
  groups: Group[];
  totals: { requests: number };
}

interface Cooldown {
  credential?: string | null;
  models?: string | null;
  state: string;
  kind?: string;
  why?: string;
  since?: number | null;
  until?: number | null;
  next_try?: number | null;
}

interface Upstream {
  name: string;
  dialect: string;
  health: string;
  active: number;
  waiting: number;
  failures: number;
  last_error?: string | null;
  last_error_at?: number | null;
  last_ok_at?: number | null;
  cooldowns: Cooldown[];
  credentials: { name: string; source?: string; state?: string; expires_at?: number | null; problem?: string | null }[];
}

interface Limit {
  scope: string;
  resource: string;
  span: string;
  amount: number;
  used: number;
  held: number;
  text: string;
}

interface Key {
  id: string;
  name: string;
  owner?: string | null;
  state: "valid" | "expired" | "revoked";
  models: string[];
  upstreams: string[];
  created_at?: number | null;
  expires_at?: number | null;
  revoked_at?: number | null;
  limits: Limit[];
  key?: string; // shown once
  aws?: { access_key_id: string; secret_access_key: string };
}

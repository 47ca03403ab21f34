/* Which model a gRPC request is for: read from its first message, told to Envoy as a header.

   A filter of Envoy, by the Proxy-Wasm ABI 0.2.1. It holds a request's headers until its message
   has come as far as the model's name (protobuf: a string, in field 1; to load and unload, in field
   2), writes the name under
   `x-holdfast-model`, and lets everything go on; Envoy then chooses the route anew. Nothing is kept
   back that is not needed for this, and nothing is changed. A name that does not come within the
   first LOOK_BYTES_MAX bytes is not looked for: the route that the request has answers then.

   After a change: `sh .ci/wasm`. docs/decisions/0024 says why it is done so. */

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define EXPORT(name) __attribute__((export_name(#name), visibility("default")))
#define IMPORT(name) __attribute__((import_module("env"), import_name(#name)))

enum { CONTINUE = 0, PAUSE = 1 };              /* what Envoy shall do with headers or data */
enum { REQUEST_HEADERS = 0, REQUEST_BODY = 0 }; /* numbers of the ABI */
enum { FOUND, MORE, NONE };                     /* of a name: here, not yet, never */

#define LOOK_BYTES_MAX 65536u /* of a message, as it came: names come first, whoever writes them */
#define INFLATED_BYTES_MAX 4096u /* of a compressed message: enough for a name, whatever it expands to */
#define NAME_BYTES_MAX 200u /* a service's name is no longer */
#define WAITING_MAX 16384u /* requests whose name has not come, of one thread of Envoy */
#define BUCKETS 4096u
#define ARENA_BYTES 262144u

IMPORT(proxy_get_buffer_bytes)
u32 proxy_get_buffer_bytes(u32 kind, u32 start, u32 most, u8 **data, u32 *size);
IMPORT(proxy_get_header_map_value)
u32 proxy_get_header_map_value(u32 map, const char *key, u32 key_size, u8 **value, u32 *size);
IMPORT(proxy_replace_header_map_value)
u32 proxy_replace_header_map_value(u32 map, const char *key, u32 key_size, const u8 *value, u32 size);
IMPORT(proxy_call_foreign_function)
u32 proxy_call_foreign_function(const char *name, u32 name_size, const u8 *data, u32 size, u8 **out,
                                u32 *out_size);

/* --- memory: what Envoy gives us lives until the call ends ------------------------------------- */

static u8 arena[ARENA_BYTES] __attribute__((aligned(16)));
static u32 used;

EXPORT(proxy_on_memory_allocate) void *proxy_on_memory_allocate(u32 size) {
  u32 wanted = (size + 15u) & ~15u;
  if (wanted < size || wanted > ARENA_BYTES - used) return 0;
  void *found = arena + used;
  used += wanted;
  return found;
}

/* --- requests whose name has not come ----------------------------------------------------------- */

typedef struct {
  u32 id, next; /* `next`: place + 1, 0 for none */
  u8 packed;    /* how a compressed message is packed */
  u8 number;    /* of the field with the name */
} Waiting;

enum { PLAIN, GZIP, ZLIB, UNKNOWN };

static Waiting waiting[WAITING_MAX];
static u32 first[BUCKETS], unused, ever;

static Waiting *add(u32 id) {
  u32 place;
  if (unused) {
    place = unused;
    unused = waiting[place - 1].next;
  } else if (ever < WAITING_MAX) {
    place = ++ever;
  } else {
    return 0;
  }
  Waiting *one = &waiting[place - 1];
  one->id = id;
  one->next = first[id % BUCKETS];
  first[id % BUCKETS] = place;
  return one;
}

static Waiting *find(u32 id) {
  for (u32 place = first[id % BUCKETS]; place; place = waiting[place - 1].next)
    if (waiting[place - 1].id == id) return &waiting[place - 1];
  return 0;
}

static void forget(u32 id) {
  for (u32 *at = &first[id % BUCKETS]; *at; at = &waiting[*at - 1].next) {
    u32 place = *at;
    if (waiting[place - 1].id == id) {
      *at = waiting[place - 1].next;
      waiting[place - 1].next = unused;
      unused = place;
      return;
    }
  }
}

/* --- protobuf: the string in a field ------------------------------------------------------------- */

/* A number at `*at`; moves behind it. */
static int varint(const u8 *data, u32 size, u32 *at, u64 *value) {
  u64 found = 0;
  for (u32 shift = 0; shift < 64; shift += 7) {
    if (*at >= size) return MORE;
    u8 byte = data[(*at)++];
    found |= (u64)(byte & 127) << shift;
    if (!(byte & 128)) {
      *value = found;
      return FOUND;
    }
  }
  return NONE;
}

/* `size` bytes of a message have come, of `whole`. */
static int field(const u8 *data, u32 size, u64 whole, u32 number, u32 *start, u32 *length) {
  u32 at = 0;
  while (at < whole) {
    u64 tag, value;
    int got = varint(data, size, &at, &tag);
    if (got != FOUND) return got;
    u32 kind = tag & 7;
    if (kind == 0) { /* a number */
      got = varint(data, size, &at, &value);
      if (got != FOUND) return got;
      continue;
    }
    if (kind == 2) { /* bytes with their length */
      got = varint(data, size, &at, &value);
      if (got != FOUND) return got;
      if (value > whole - at) return NONE;
    } else if (kind == 1 || kind == 5) { /* eight or four bytes */
      value = kind == 1 ? 8 : 4;
      if (value > whole - at) return NONE;
    } else {
      return NONE;
    }
    if (tag == ((number << 3) | 2)) {
      if (value == 0 || value > NAME_BYTES_MAX) return NONE;
      if (value > size - at) return MORE;
      for (u32 i = 0; i < value; i++)
        if (data[at + i] <= 32 || data[at + i] >= 127) return NONE; /* no name, and no header */
      *start = at;
      *length = (u32)value;
      return FOUND;
    }
    if (value > size - at) return MORE;
    at += (u32)value;
  }
  return NONE;
}

/* --- deflate (RFC 1951): the first bytes of what was packed --------------------------------------- */

typedef struct {
  const u8 *data;
  u32 size, at, bits, count;
  int ended; /* there are no more bits */
} Bits;

static u32 take(Bits *in, u32 count) {
  while (in->count < count) {
    if (in->at >= in->size) {
      in->ended = 1;
      return 0;
    }
    in->bits |= (u32)in->data[in->at++] << in->count;
    in->count += 8;
  }
  u32 found = in->bits & ((1u << count) - 1);
  in->bits >>= count;
  in->count -= count;
  return found;
}

typedef struct {
  unsigned short counts[16], symbols[288];
} Code;

/* The canonical code of these lengths; 0: there is none. */
static int build(Code *code, const u8 *lengths, u32 count) {
  unsigned short offsets[16];
  for (u32 i = 0; i < 16; i++) code->counts[i] = 0;
  for (u32 i = 0; i < count; i++) code->counts[lengths[i]]++;
  int left = 1;
  for (u32 i = 1; i < 16; i++) {
    left = left * 2 - code->counts[i];
    if (left < 0) return 0;
  }
  offsets[1] = 0;
  for (u32 i = 1; i < 15; i++) offsets[i + 1] = offsets[i] + code->counts[i];
  for (u32 i = 0; i < count; i++)
    if (lengths[i]) code->symbols[offsets[lengths[i]]++] = (unsigned short)i;
  return 1;
}

static int symbol(Bits *in, const Code *code) {
  int value = 0, begin = 0, index = 0;
  for (u32 length = 1; length < 16; length++) {
    value |= (int)take(in, 1);
    if (in->ended) return -1;
    int count = code->counts[length];
    if (value - count < begin) return code->symbols[index + (value - begin)];
    index += count;
    begin = (begin + count) << 1;
    value <<= 1;
  }
  return -1;
}

static const unsigned short LENGTHS[29] = {3,  4,  5,  6,  7,  8,  9,  10, 11,  13,  15,  17,  19,  23, 27,
                                           31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163, 195, 227, 258};
static const u8 LENGTH_BITS[29] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0};
static const unsigned short DISTANCES[30] = {1,   2,   3,   4,   5,   7,    9,    13,   17,   25,
                                             33,  49,  65,  97,  129, 193,  257,  385,  513,  769,
                                             1025, 1537, 2049, 3073, 4097, 6145, 8193, 12289, 16385, 24577};
static const u8 ORDER[19] = {16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15};

static u8 out[INFLATED_BYTES_MAX];
static u32 made; /* bytes in `out` */
static Code literals, distances;

static int codes(Bits *in, u32 kind) {
  u8 lengths[320];
  u32 count = 288, far = 30, at = 0;
  if (kind == 1) {
    while (at < 144) lengths[at++] = 8;
    while (at < 256) lengths[at++] = 9;
    while (at < 280) lengths[at++] = 7;
    while (at < 288) lengths[at++] = 8;
    while (at < 318) lengths[at++] = 5;
    return build(&literals, lengths, 288) && build(&distances, lengths + 288, 30);
  }
  count = take(in, 5) + 257;
  far = take(in, 5) + 1;
  u32 orders = take(in, 4) + 4;
  if (in->ended || count > 286 || far > 30) return 0;
  for (at = 0; at < 19; at++) lengths[ORDER[at]] = at < orders ? (u8)take(in, 3) : 0;
  if (in->ended || !build(&literals, lengths, 19)) return 0;
  for (at = 0; at < count + far;) {
    int next = symbol(in, &literals);
    if (next < 0) return 0;
    if (next < 16) {
      lengths[at++] = (u8)next;
      continue;
    }
    u8 before = 0;
    u32 times;
    if (next == 16) {
      if (!at) return 0;
      before = lengths[at - 1];
      times = 3 + take(in, 2);
    } else {
      times = next == 17 ? 3 + take(in, 3) : 11 + take(in, 7);
    }
    if (in->ended || at + times > count + far) return 0;
    while (times--) lengths[at++] = before;
  }
  return build(&literals, lengths, count) && build(&distances, lengths + count, far);
}

/* Unpack until `out` is full, the end, or what has come is used up. 0: it is damaged. */
static int inflate(const u8 *data, u32 size) {
  Bits in = {data, size, 0, 0, 0, 0};
  u32 last = 0;
  made = 0;
  while (!last) {
    last = take(&in, 1);
    u32 kind = take(&in, 2);
    if (in.ended) return 1;
    if (kind == 0) {
      in.bits = in.count = 0;
      if (in.size - in.at < 4) return 1;
      u32 length = in.data[in.at] | (u32)in.data[in.at + 1] << 8;
      for (in.at += 4; length; length--) {
        if (in.at >= in.size || made >= INFLATED_BYTES_MAX) return 1;
        out[made++] = in.data[in.at++];
      }
      continue;
    }
    if (kind == 3) return 0;
    if (!codes(&in, kind)) return in.ended;
    for (;;) {
      int next = symbol(&in, &literals);
      if (next < 0) return in.ended;
      if (next == 256) break;
      if (made >= INFLATED_BYTES_MAX) return 1;
      if (next < 256) {
        out[made++] = (u8)next;
        continue;
      }
      if (next > 285) return 0;
      u32 length = LENGTHS[next - 257] + take(&in, LENGTH_BITS[next - 257]);
      int near = symbol(&in, &distances);
      if (near < 0 || near > 29) return in.ended;
      u32 back = DISTANCES[near] + take(&in, near < 4 ? 0 : (u32)(near / 2 - 1));
      if (in.ended) return 1;
      if (back > made) return 0;
      for (; length && made < INFLATED_BYTES_MAX; length--, made++) out[made] = out[made - back];
    }
  }
  return 1;
}

/* Behind the head of gzip (RFC 1952) or zlib (RFC 1950); 0: it has not come, or is none. */
static u32 body_at(const u8 *data, u32 size, u32 packed) {
  if (packed == ZLIB) return size >= 2 && (data[0] & 15) == 8 && !(data[1] & 32) ? 2 : 0;
  if (size < 10 || data[0] != 31 || data[1] != 139 || data[2] != 8) return 0;
  u32 flags = data[3], at = 10;
  if (flags & 4) {
    if (size < at + 2) return 0;
    at += 2 + (data[at] | (u32)data[at + 1] << 8);
  }
  for (u32 text = 8; text <= 16; text <<= 1) {
    if (!(flags & text)) continue;
    while (at < size && data[at]) at++;
    at++;
  }
  if (flags & 2) at += 2;
  return at < size ? at : 0;
}

/* --- a request ------------------------------------------------------------------------------------ */

/* The name in the first frame of gRPC: a byte that says whether it is compressed, four of length. */
static int name_in(const u8 *data, u32 size, const Waiting *one, const u8 **name, u32 *length) {
  u32 start, packed = one->packed;
  int got;
  if (size < 5) return MORE;
  u64 whole = (u64)data[1] << 24 | (u64)data[2] << 16 | (u64)data[3] << 8 | data[4];
  u32 here = size - 5 < whole ? size - 5 : (u32)whole;
  const u8 *message = data + 5;
  if (data[0] == 0) {
    got = field(message, here, whole, one->number, &start, length);
  } else if (data[0] == 1 && packed != UNKNOWN && packed != PLAIN) {
    u32 at = body_at(message, here, packed);
    if (!at) return here < whole ? MORE : NONE;
    if (!inflate(message + at, here - at)) return NONE;
    got = field(out, made, made < INFLATED_BYTES_MAX && here == whole ? made : ~0ull >> 1, one->number,
                &start, length);
    message = out;
    if (got == MORE && made >= INFLATED_BYTES_MAX) return NONE;
  } else {
    return NONE;
  }
  if (got == MORE && here == whole) return NONE;
  *name = message + start;
  return got;
}

static int begins(const u8 *text, u32 size, const char *word) {
  u32 at = 0;
  while (at < size && word[at] && text[at] == (u8)word[at]) at++;
  return !word[at];
}

static int same(const u8 *text, u32 size, const char *word) {
  u32 at = 0;
  while (at < size && word[at] && text[at] == (u8)word[at]) at++;
  return at == size && !word[at];
}

EXPORT(proxy_on_request_headers) u32 proxy_on_request_headers(u32 id, u32 count, u32 ended) {
  (void)count;
  used = 0;
  if (ended) return CONTINUE;
  Waiting *one = add(id);
  if (!one) return CONTINUE;
  u8 *text = 0;
  u32 size = 0;
  one->packed = PLAIN;
  one->number = 1;
  if (proxy_get_header_map_value(REQUEST_HEADERS, ":path", 5, &text, &size) == 0 &&
      begins(text, size, "/inference.GRPCInferenceService/RepositoryModel"))
    one->number = 2;
  if (proxy_get_header_map_value(REQUEST_HEADERS, "grpc-encoding", 13, &text, &size) == 0 && size)
    one->packed = same(text, size, "gzip")       ? GZIP
                  : same(text, size, "deflate")  ? ZLIB
                  : same(text, size, "identity") ? PLAIN
                                                 : UNKNOWN;
  return PAUSE;
}

EXPORT(proxy_on_request_body) u32 proxy_on_request_body(u32 id, u32 size, u32 ended) {
  static const char HEADER[] = "x-holdfast-model", CLEAR[] = "clear_route_cache";
  Waiting *one = find(id);
  if (!one) return CONTINUE;
  used = 0;
  u8 *data = 0, *nothing = 0;
  const u8 *name = 0;
  u32 got = 0, length = 0, none = 0, most = size < LOOK_BYTES_MAX ? size : LOOK_BYTES_MAX;
  int found = MORE;
  if (most && proxy_get_buffer_bytes(REQUEST_BODY, 0, most, &data, &got) == 0)
    found = name_in(data, got, one, &name, &length);
  if (found == MORE && !ended && size < LOOK_BYTES_MAX) return PAUSE;
  forget(id);
  if (found == FOUND) {
    proxy_replace_header_map_value(REQUEST_HEADERS, HEADER, sizeof HEADER - 1, name, length);
    proxy_call_foreign_function(CLEAR, sizeof CLEAR - 1, 0, 0, &nothing, &none);
  }
  return CONTINUE;
}

EXPORT(proxy_on_delete) void proxy_on_delete(u32 id) { forget(id); }
EXPORT(proxy_on_done) u32 proxy_on_done(u32 id) { return forget(id), 1; }
EXPORT(proxy_on_context_create) void proxy_on_context_create(u32 id, u32 parent) { (void)id, (void)parent; }
EXPORT(proxy_on_vm_start) u32 proxy_on_vm_start(u32 id, u32 size) { return (void)id, (void)size, 1; }
EXPORT(proxy_on_configure) u32 proxy_on_configure(u32 id, u32 size) { return (void)id, (void)size, 1; }
EXPORT(proxy_abi_version_0_2_1) void proxy_abi_version_0_2_1(void) {}
EXPORT(_initialize) void _initialize(void) {}

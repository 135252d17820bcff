#!/usr/bin/env python3
"""Transforms of documents drawn at random, compared with what brute force finds.

    tests/cli/sampled_data.py PROGRAM SEED [CASES]

Each case makes documents with known copies, near copies, repeated strings and paragraphs, and documents that exactly one
rule drops. It runs every transform with random options, on 1 to 4 ranks, killed at random and run again, and computes what
must be left with sets and loops over all pairs. A case that fails prints its seed; `... SEED 1` runs it again.
"""
import bz2, collections, glob, gzip, json, lzma, os, random, re, struct, subprocess, sys, tempfile, unicodedata

program, seed, cases = os.path.realpath(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 1


class Case:
    def __init__(self, seed):
        self.seed, self.draw = seed, random.Random(seed)
        self.vocabulary = sorted({self.word() for _ in range(4000)})
        self.log = []

    def word(self):
        letters = 'abcdefghijklmnopqrstuvwxyz'
        word = ''.join(self.draw.choice(letters) for _ in range(self.draw.randint(3, 9)))
        return word[:-1] + self.draw.choice('éüñö語') if self.draw.random() < 0.05 else word

    # ---- documents --------------------------------------------------------------------------
    def sentence(self, words):
        return ' '.join(self.draw.choice(self.vocabulary) for _ in range(words)).capitalize() + '.'

    def paragraph(self):
        return ' '.join(self.sentence(self.draw.randint(5, 15)) for _ in range(self.draw.randint(2, 6)))

    def text(self, paragraphs=None):
        return '\n\n'.join(self.paragraph() for _ in range(paragraphs or self.draw.randint(1, 5)))

    def planted(self):
        """Texts in random order: fresh ones, copies, copies with a few other words, shared paragraphs and strings."""
        draw, texts = self.draw, [self.text() for _ in range(self.draw.randint(60, 160))]
        shared = [self.paragraph() for _ in range(6)]
        for _ in range(draw.randint(0, 30)):
            texts.append(draw.choice(texts))
        for _ in range(draw.randint(0, 20)):
            words = self.text(6).split(' ')
            texts.append(' '.join(words))
            for _ in range(draw.randint(1, 3)):
                edited = list(words)
                edited[draw.randrange(len(edited))] = self.word()
                texts.append(' '.join(edited))
        for _ in range(draw.randint(0, 30)):
            parts = draw.choice(texts).split('\n\n')
            parts.insert(draw.randint(0, len(parts)), draw.choice(shared))
            texts.append('\n\n'.join(parts))
        for _ in range(draw.randint(0, 20)):
            text, part = self.text(2), draw.choice(texts)
            at = draw.randrange(len(part))
            texts.append(text[:100] + part[at:at + draw.randint(20, 400)] + text[100:])
        draw.shuffle(texts)
        return [{'id': f'd{i}', 'source': draw.choice('abc'), 'text': text} for i, text in enumerate(texts)]

    def write(self, name, docs):
        """Into one to four files of a folder, of random formats; their names keep the order."""
        os.makedirs(name)
        at = sorted(self.draw.randint(0, len(docs)) for _ in range(self.draw.randint(0, 3)))
        for i, (begin, end) in enumerate(zip([0] + at, at + [len(docs)])):
            lines = ''.join(json.dumps(d, ensure_ascii=self.draw.random() < 0.5) + '\n' for d in docs[begin:end])
            ending, pack = self.draw.choice([('jsonl', bytes), ('jsonl.gz', gzip.compress), ('jsonl.bz2', bz2.compress),
                                             ('jsonl.xz', lzma.compress), ('json', None), ('jsonl', bytes)])
            content = json.dumps(docs[begin:end]).encode() if pack is None else pack(lines.encode())
            if begin < end: open(f'{name}/{i}.{ending}', 'wb').write(content)

    # ---- running ----------------------------------------------------------------------------
    def run(self, *args, out, inputs=None):
        """Runs a transform on random ranks, killed up to twice. @return the documents that it wrote."""
        draw = self.draw
        args = ['data', *args, '--out', out, '--quiet']
        if args[1] != 'tokenize': args += ['--compress', draw.choice(['none', 'gz'])]
        if args[1] != 'merge' and draw.random() < 0.7: args += ['--part', '64Ki']
        env = dict(os.environ)
        for _ in range(draw.choice([0, 0, 1, 2])):
            env['INGOT_FAULT'] = f'kill:task:rank={draw.randrange(2)}:hit={draw.randint(1, 5)}'
            self.start(args, env, draw.randint(1, 4), False)
        env.pop('INGOT_FAULT', None)
        self.start(args, env, draw.randint(1, 4), True)
        return self.read(out) if args[1] != 'tokenize' else None

    def start(self, args, env, ranks, must):
        head = [program] if ranks == 1 else [program, 'launch', '-n', str(ranks), '--restart-delay', '0.1', '--']
        self.log.append(' '.join([env.get('INGOT_FAULT', '')] + head[1:] + args))
        done = subprocess.run(head + args, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=900)
        killed = done.returncode in (-9, 137)
        if done.returncode and (must or not ('INGOT_FAULT' in env and (killed or ranks > 1))):
            self.fail(f'exit {done.returncode}: {done.stdout.decode()}')

    def read(self, folder):
        docs = []
        for path in sorted(glob.glob(folder + '/part-*.jsonl*')):
            opened = gzip.open if path.endswith('.gz') else open
            docs += [json.loads(line) for line in opened(path, 'rt', encoding='utf-8', newline='\n')]
        return docs

    def fail(self, why):
        print(f'sampled_data: case {self.seed}: {why}\n  ' + '\n  '.join(self.log[-4:]))
        sys.exit(1)

    def same(self, got, wanted, what):
        strip = lambda docs: [(d['id'], d['text']) for d in docs]
        got, wanted = strip(got), strip(wanted)
        if got == wanted: return
        first = next((i for i, (a, b) in enumerate(zip(got, wanted)) if a != b), min(len(got), len(wanted)))
        self.fail(f'{what}: {len(got)} documents, wanted {len(wanted)}; the first that differs, {first}: '
                  f'{got[first:first + 1]} and {wanted[first:first + 1]}')


# ---- what must be left ----------------------------------------------------------------------
def words_of(text):
    plain = ''.join(c for c in unicodedata.normalize('NFKD', text) if not unicodedata.combining(c)).lower()
    return re.findall(r'語|[^\W_語]+', plain) # Chinese characters are words of their own


def grams_of(words, n):
    return {tuple(words[i:i + n]) for i in range(len(words) - n + 1)} or {tuple(words)}


def check_documents(c, docs, method):
    """Copies by bytes, or by the Jaccard similarity of 5-grams, over all pairs."""
    keep = c.draw.choice(['first', 'last', 'longest'])
    parent = list(range(len(docs)))

    def root(i):
        while parent[i] != i: i = parent[i]
        return i

    def join(i, j):
        i, j = sorted((root(i), root(j)))
        parent[j] = i
    if method == 'exact':
        pairs = ((i, j) for i in range(len(docs)) for j in range(i) if docs[i]['text'] == docs[j]['text'])
    else:
        grams = [grams_of(words_of(d['text']), 5) for d in docs]
        having = collections.defaultdict(list)
        for i, g in enumerate(grams):
            for gram in g: having[gram].append(i)
        near = {(i, j) for l in having.values() for i in l for j in l if j < i}
        similar = {p: len(grams[p[0]] & grams[p[1]]) / len(grams[p[0]] | grams[p[1]]) for p in near}
        # Found with a probability of less than 1e-6 below 0.13, of more than 1 - 1e-6 above 0.95: see the S-curve.
        doubtful = {i for (i, j), s in similar.items() if 0.13 < s < 0.95}
        left = [i for i in range(len(docs)) if i not in doubtful]
        docs = [docs[i] for i in left]
        number = {i: n for n, i in enumerate(left)}
        pairs = [(number[i], number[j]) for (i, j), s in similar.items() if s >= 0.95 and i in number and j in number]
        parent = parent[:len(docs)]
    for i, j in pairs: join(i, j)
    clusters = collections.defaultdict(list)
    for i in range(len(docs)): clusters[root(i)].append(i)
    size = lambda i: len(docs[i]['text'].encode())
    best = {'first': min, 'last': max, 'longest': lambda m: min(m, key=lambda i: (-size(i), i))}[keep]
    c.write(f'{method}-in', docs)
    got = c.run('dedup', f'{method}-in', '--method', method, '--keep', keep, out=method)
    c.same(got, [docs[i] for i in sorted(best(m) for m in clusters.values())], f'dedup {method}, {keep}')


def check_earlier(c, docs):
    """Nothing of an earlier corpus, whether it is read or its index is."""
    earlier, new = docs[:len(docs) // 2], docs[len(docs) // 2:]
    c.write('earlier', earlier)
    c.write('new', new)
    seen, wanted = {d['text'] for d in earlier}, []
    for d in new:
        if d['text'] not in seen: wanted.append(d)
        seen.add(d['text'])
    if c.draw.random() < 0.5:
        got = c.run('dedup', 'new', '--method', 'exact', '--against', 'earlier', out='against')
    else:
        c.run('dedup', 'earlier', '--method', 'exact', '--save-index', 'keys', out='earlier-unique')
        got = c.run('dedup', 'new', '--method', 'exact', '--index', 'keys', out='against')
    c.same(got, wanted, 'dedup with an earlier corpus')


def check_paragraphs(c, docs):
    least, lines = c.draw.randint(3, 15), c.draw.random() < 0.5
    ngram = c.draw.choice([0, 0, 4, 8])
    stride, overlap = c.draw.randint(1, 4), c.draw.choice([0.3, 0.5, 1])
    seen, wanted = set(), []
    for d in docs:
        kept = []
        for p in d['text'].split('\n\n'):
            words = words_of(p)
            begins = [i for i in range(len(words) - ngram + 1) if i == 0 or (i - 1) % stride == 0] if ngram else []
            keys = [tuple(words[i:i + ngram]) for i in begins]
            if len(keys) < 2: keys = [('whole', *words)]
            if len(words) < least:
                kept.append(p)
                continue
            old = 0
            for key in keys:
                old += key in seen
                seen.add(key)
            if old < len(keys) * (overlap if ngram and len(keys) > 1 else 1): kept.append(p)
        if kept: wanted.append({'id': d['id'], 'text': '\n\n'.join(kept)})
    args = ['--paragraph-words', str(least)] + ['--lines'] * lines
    if ngram: args += ['--ngram', str(ngram), '--stride', str(stride), '--overlap', str(overlap)]
    got = c.run('dedup', 'docs', '--method', 'paragraph', *args, out='paragraphs')
    c.same([{'id': d['id'], 'text': d['text'].strip('\n')} for d in got], wanted, f'dedup paragraph {args}')


def check_substrings(c, docs):
    """Every window of so many bytes is looked up among all of them."""
    length, keep = c.draw.choice([20, 50, 100, 200]), c.draw.random() < 0.5
    count, wanted, first = collections.Counter(), [], set()
    texts = [d['text'].encode() for d in docs]
    for t in texts: count.update(t[i:i + length] for i in range(len(t) - length + 1))
    for d, t in zip(docs, texts):
        cut = bytearray(len(t))
        for i in range(len(t) - length + 1):
            window = t[i:i + length]
            if count[window] > 1:
                if not keep or window in first: cut[i:i + length] = b'\1' * length
                first.add(window)
        left = bytearray()
        for m in re.finditer(rb'[\x00-\x7f]|[\xc0-\xff][\x80-\xbf]*', t): # a character that is partly cut stays
            if not all(cut[m.start():m.end()]): left += m.group()
        if left.strip(): wanted.append({'id': d['id'], 'text': left.decode()})
    args = ['--length', str(length)] + ['--keep', 'first'] * keep
    got = c.run('dedup', 'docs', '--method', 'substring', *args, out='substrings')
    c.same(got, wanted, f'dedup substring {args}')


def check_filter(c, docs):
    """Documents that exactly one rule drops, and the members that --where wants."""
    draw, made = c.draw, []
    short, long = draw.randint(10, 40), draw.randint(60, 300)
    bad, plain = 'zzbadword', lambda n: ' '.join('word' + draw.choice('abcd') for _ in range(n))
    for i in range(200):
        n = draw.randint(short, long)
        text, rule = draw.choice([
            (plain(n), None), (plain(short), None), (plain(long), None), (plain(short - 1), 'basic-min-words'),
            (plain(long + 1), 'basic-max-words'), (' '.join('aa' for _ in range(n)), 'basic-word-length'),
            (plain(n - n // 3) + ' word#' * (n // 3), 'basic-symbols'),
            (plain(n - n // 2) + ' 123456789' * (n // 2), 'basic-letters'),
            (plain(n - 1) + ' ' + bad.upper(), 'bad-word-count'), (plain(n - 1) + ' x' + bad, None)])
        score = draw.randrange(10)
        if score < 3: rule = 'where-count'
        made.append({'id': f'f{i}', 'score': score, 'text': text, 'rule': rule})
    c.write('rules-in', [{k: d[k] for k in ('id', 'score', 'text')} for d in made])
    open('bad.txt', 'w').write(bad + '\n')
    got = c.run('filter', 'rules-in', '--rules', 'basic', '--basic-min-words', str(short), '--basic-max-words', str(long),
                '--bad-words', 'bad.txt', '--where', 'score>=3', '--dropped', 'dropped', out='rules')
    c.same(got, [d for d in made if not d['rule']], 'filter')
    gone = {d['id']: d['dropped_by'] for d in c.read('dropped')}
    for d in made:
        if gone.get(d['id']) != d['rule']: c.fail(f"filter: {d['id']} dropped by {gone.get(d['id'])}, not {d['rule']}: {d['text']}")
    d = draw.choice(made)
    said = subprocess.run([program, 'data', 'explain', d['id'], 'rules', '--json'], capture_output=True)
    rule = re.search(r'"rule": "([^"]*)"', said.stdout.decode())
    if said.returncode or (rule and rule[1]) != d['rule']:
        c.fail(f"explain {d['id']}: {said.stdout.decode()} {said.stderr.decode()}, not {d['rule']}")


def check_decontaminate(c, docs):
    """Of each document with a reference text, no n-gram of it is left; the others are as they were."""
    questions = [' '.join(c.word() for _ in range(c.draw.randint(13, 40))) for _ in range(5)]
    open('evals.jsonl', 'w').write(''.join(json.dumps({'q': q}) + '\n' for q in questions))
    made = []
    for d in docs:
        text, has = d['text'], c.draw.random() < 0.2
        if has: text = text + '\n' + c.draw.choice(questions).upper() + '! ' + c.text(3)
        made.append({'id': d['id'], 'text': text, 'has': has})
    c.write('asked', [{'id': d['id'], 'text': d['text']} for d in made])
    got = {d['id']: d['text'] for d in c.run('decontaminate', 'asked', '--against', 'evals.jsonl', '--common', '0', out='clean')}
    grams = set().union(*(grams_of(words_of(q), 13) for q in questions))
    for d in made:
        left = got.get(d['id'])
        if not d['has'] and left != d['text']: c.fail(f"decontaminate changed {d['id']}: {d['text']}\n{left}")
        if d['has'] and left and grams & grams_of(words_of(left), 13): c.fail(f"decontaminate left a question in {d['id']}")
        if d['has'] and left is None: c.fail(f"decontaminate dropped {d['id']}, of which most is its own")


def check_sample(c, docs):
    """Documents in random order until the next would be too many: a larger sample begins with a smaller one."""
    per, n, text = c.draw.random() < 0.5, c.draw.randint(1, len(docs)), {d['id']: d for d in docs}
    seed = ['--seed', str(c.draw.randrange(100))]
    group = lambda d: d['source'] if per else ''
    samples = []
    for i, k in enumerate((n, n + c.draw.randint(0, 20))):
        got = c.run('sample', 'docs', '--count', str(k), *seed, *['--per', 'source'] * per, out=f'sample{i}')
        sizes, all_of = collections.Counter(map(group, got)), collections.Counter(map(group, docs))
        if sizes != {g: min(k, all_of[g]) for g in all_of}: c.fail(f'sample --count {k}: {sizes} of {all_of}')
        samples.append([d['id'] for d in got])
    if not set(samples[0]) <= set(samples[1]): c.fail('sample: a larger one does not contain a smaller one')
    if samples[0] != [d['id'] for d in docs if d['id'] in set(samples[0])]: c.fail('sample: another order')
    most = sum(len(d['text'].encode()) for d in docs) // 2
    got = c.run('sample', 'docs', '--bytes', str(most), *seed, out='bytes')
    size, longest = sum(len(d['text'].encode()) for d in got), max(len(d['text'].encode()) for d in docs)
    if not most - longest < size <= most: c.fail(f'sample --bytes {most}: {size}')
    share = c.draw.random()
    some, more = (c.run('sample', 'docs', '--share', str(s), *seed, out=f'share{s}') for s in (share, (1 + share) / 2))
    if not {d['id'] for d in some} <= {d['id'] for d in more}: c.fail('sample --share: a smaller share is no part of a larger')
    taken = {d['text'] for d in some}
    c.same(some, [d for d in docs if d['text'] in taken], 'sample --share, copies')
    for d in more: c.same([d], [text[d['id']]], 'sample')


def check_arrangement(c, docs):
    """shuffle, split, merge and tokenize lose, add and change nothing."""
    by_id = lambda l: sorted(l, key=lambda d: int(d['id'][1:]))
    seed = str(c.draw.randrange(1, 100))
    mixed = c.run('shuffle', 'docs', '--seed', seed, '--size', c.draw.choice(['64Ki', '200Ki', '1Mi']), out='mixed')
    if mixed == docs: c.fail('shuffle left the order')
    c.same(by_id(mixed), docs, 'shuffle')
    c.run('split', 'docs', '--into', 'x=0.5,y=0.3,z=0.2', out='shares')
    parts = [c.read(f'shares/{name}') for name in 'xyz']
    c.same(by_id(sum(parts, [])), docs, 'split')
    sides = collections.defaultdict(set)
    for i, part in enumerate(parts):
        for d in part: sides[d['text']].add(i)
    if any(len(s) > 1 for s in sides.values()): c.fail('split: copies of a text are in two parts')
    c.run('split', 'docs', '--by', 'source', '--into', 'a,rest', out='values')
    for name, has in ('a', lambda d: d['source'] == 'a'), ('rest', lambda d: d['source'] != 'a'):
        c.same(c.read(f'values/{name}'), list(filter(has, docs)), f'split --by source, {name}')
    c.same(c.run('merge', 'values/a', 'values/rest', out='merged'), c.read('values/a') + c.read('values/rest'), 'merge')
    c.run('tokenize', 'docs', '-t', 'bytes', out='tokens')
    subprocess.run([program, 'data', 'export', 'tokens', '--to', 'megatron', '--out', 'ids'], check=True, stdout=subprocess.DEVNULL)
    ids, index = open('ids.bin', 'rb').read(), open('ids.idx', 'rb').read()
    n = struct.unpack_from('<Q', index, 18)[0]
    lengths, at, texts = struct.unpack_from(f'<{n}i', index, 34), 0, []
    for length in lengths:
        texts.append(bytes(struct.unpack_from(f'<{length - 1}H', ids, at)))
        if struct.unpack_from('<H', ids, at + 2 * (length - 1)) != (256,): c.fail('tokenize: a document does not end')
        at += 2 * length
    if texts != [d['text'].encode() for d in docs] or at != len(ids): c.fail('tokenize: other texts')


checks = [lambda c, d: check_documents(c, d, 'exact'), lambda c, d: check_documents(c, d, 'near'), check_earlier,
          check_paragraphs, check_substrings, check_filter, check_decontaminate, check_sample, check_arrangement]
for number in range(seed, seed + cases):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        case = Case(number)
        docs = case.planted()
        case.write('docs', docs)
        case.draw.shuffle(checks)
        for check in checks: check(case, docs)
        os.chdir('/')
print(f'sampled_data: {cases} cases from seed {seed}')

// Reads metrics in Prometheus' classic format, and says the few that people look at.

/** Each metric's sum over its labels. */
export function parse(text) {
  const sums = new Map();
  for (const line of text.split("\n")) {
    const [, name, value] = /^([a-zA-Z_:][\w:]*)(?:\{.*\})? (\S+)/.exec(line) ?? [];
    if (name) sums.set(name, (sums.get(name) ?? 0) + Number(value));
  }
  return sums;
}

/** What is told of `now`, in words.  `before` is what was `ms` milliseconds earlier, if anything was. */
export function summary(now, before, ms) {
  const sum = (...names) => names.reduce((all, name) => all + (now.get(`smelt_${name}`) ?? 0), 0);
  const running = sum("answers_looking", "answers_reading", "answers_saying");
  const waiting = sum("answers_waiting", "embed_waiting");
  const said = before ? sum(SAID) - (before.get(`smelt_${SAID}`) ?? 0) : 0;
  const own = now.get("smelt_process_resident_bytes"), free = now.get("smelt_machine_available_bytes");
  return [
    `${running} running`,
    `${waiting} queued`,
    ...(said > 0 ? [`${(said * 1000 / ms).toFixed(1)} tokens/s`] : []),
    ...(own === undefined ? [] : [`${bytes(own)} held`]),
    ...(free === undefined ? [] : [`${bytes(free)} free`]),
  ];
}

const SAID = "engine_said_tokens_total";

export function bytes(count) {
  return count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${(count / 2 ** 20).toFixed(0)} MiB`;
}

/** Which of the messages at hand is handled next: so many at a time, and one after the other for each key. */

export interface Task {
  /** Tasks of one key are run in order, one at a time; those without a key in any. */
  readonly key: string | undefined;
  /** Takes a slot until it resolves. Does not reject. */
  run(): Promise<void>;
}

export class Scheduler<T extends Task> {
  #free: number;
  readonly #ready = new Set<T>();
  /** For each key that is being handled: those that wait for it. */
  readonly #behind = new Map<string, T[]>();
  readonly #running = new Set<T>();

  constructor(slots: number) {
    this.#free = slots;
  }

  /** Runs a task as soon as there is a slot and those of its key are done. */
  add(task: T): void {
    const { key } = task;
    const others = key === undefined ? undefined : this.#behind.get(key);
    if (others !== undefined) {
      others.push(task);
      return;
    }
    if (key !== undefined) this.#behind.set(key, []);
    this.#ready.add(task);
    this.#start();
  }

  /** Removes and returns all tasks that have not started. */
  drain(): T[] {
    const waiting = [...this.#ready, ...[...this.#behind.values()].flat()];
    this.#ready.clear();
    for (const others of this.#behind.values()) others.length = 0;
    return waiting;
  }

  get running(): ReadonlySet<T> {
    return this.#running;
  }

  #start(): void {
    for (const task of this.#ready) {
      if (this.#free === 0) return;
      this.#ready.delete(task);
      this.#free -= 1;
      this.#running.add(task);
      void task.run().finally(() => this.#finished(task));
    }
  }

  #finished(task: T): void {
    this.#running.delete(task);
    this.#free += 1;
    const { key } = task;
    if (key !== undefined) {
      const next = this.#behind.get(key)?.shift();
      if (next === undefined) this.#behind.delete(key);
      else this.#ready.add(next);
    }
    this.#start();
  }
}

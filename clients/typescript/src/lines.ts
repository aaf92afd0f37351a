/** Splits a stream of bytes into lines. */

const NEWLINE = 0x0a;

export class LineSplitter {
  #rest: Buffer[] = [];
  #restBytes = 0;

  constructor(private readonly lineBytesMax: number) {}

  /** The complete lines that a chunk brings, blank ones left out. Throws a RangeError at a line over the bound. */
  push(chunk: Buffer): string[] {
    const lines: string[] = [];
    let start = 0;
    for (let end = chunk.indexOf(NEWLINE); end >= 0; end = chunk.indexOf(NEWLINE, start)) {
      const line = this.#take(chunk.subarray(start, end));
      if (line.trim() !== "") lines.push(line);
      start = end + 1;
    }
    if (start < chunk.length) {
      this.#rest.push(chunk.subarray(start));
      this.#restBytes += chunk.length - start;
      if (this.#restBytes > this.lineBytesMax) throw new RangeError(`a line of more than ${this.lineBytesMax} bytes`);
    }
    return lines;
  }

  #take(end: Buffer): string {
    if (this.#rest.length === 0) return end.toString("utf8");
    const line = Buffer.concat([...this.#rest, end]).toString("utf8");
    this.#rest = [];
    this.#restBytes = 0;
    return line;
  }
}

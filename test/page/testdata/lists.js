// Moves items between the lists of a page, in as much of a document as page/script/update.js uses. It prints what the lists have.
import {applyUpdate} from '../../../page/script/update.js';

class Element {
  constructor(id, text) {
    Object.assign(this, {id, text, children: [], parent: null, dataset: {}});
    this.classList = {contains: () => false, add: () => {}};
  }
  get firstElementChild() { return this.children[0] || null; }
  get nextElementSibling() { return this.parent.children[this.parent.children.indexOf(this) + 1] || null; }
  get isConnected() { return find(this.id) === this; }
  contains(other) { return this === other || this.children.some((child) => child.contains(other)); }
  remove() {
    if (this.parent) this.parent.children.splice(this.parent.children.indexOf(this), 1);
    this.parent = null;
  }
  insertBefore(element, at) {
    element.remove();
    this.children.splice(at ? this.children.indexOf(at) : this.children.length, 0, element);
    element.parent = this;
  }
  replaceWith(element) {
    this.parent.insertBefore(element, this);
    this.remove();
  }
}

const root = new Element('root');
function find(id, below = root) {
  if (below.id === id) return below;
  for (const child of below.children) {
    const found = find(id, child);
    if (found) return found;
  }
  return null;
}
// The HTML of an item is its ID with its text: a=text.
globalThis.document = {
  activeElement: null,
  getElementById: (id) => find(id),
  createElement: () => ({set innerHTML(html) { this.content = {firstElementChild: new Element(...html.split('='))}; }}),
};
for (const id of ['stuck', 'recent']) root.insertBefore(new Element(id), null);

function show() {
  return root.children.map((list) => list.id + ': ' + list.children.map((item) => item.id + ' ' + item.text).join(', ')).join('; ');
}

for (const update of JSON.parse(process.argv[2])) {
  applyUpdate(update);
  console.log(show());
}

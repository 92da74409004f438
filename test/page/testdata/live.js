// Sends updates to the page's script and prints whether it says that the page is live.
const live = {hidden: true, className: '', textContent: ''};
let source = null;
globalThis.document = {
  body: {dataset: {page: '/pod/shop/web-0'}}, hidden: false, addEventListener: () => {}, querySelectorAll: () => [],
  getElementById: (id) => id === 'live' ? live : null,
};
globalThis.setInterval = () => {};
globalThis.EventSource = class {
  constructor() { source = this; }
};
require('../../../page/script/app.js');

source.onopen();
for (const update of JSON.parse(process.argv[2])) {
  source.onmessage({data: JSON.stringify(update)});
  console.log(live.className + ': ' + live.textContent);
}

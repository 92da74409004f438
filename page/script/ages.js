// age prints a duration as the server does.
function age(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return s + ' s';
  if (s < 3600) return Math.floor(s / 60) + ' min ' + s % 60 + ' s';
  if (s < 48 * 3600) return Math.floor(s / 3600) + ' h ' + Math.floor(s % 3600 / 60) + ' min';
  return Math.floor(s / 86400) + ' days';
}

export function showAges() {
  const now = Date.now();
  for (const element of document.querySelectorAll('[data-since]')) {
    const text = age(now - Number(element.dataset.since));
    if (element.textContent !== text) element.textContent = text;
  }
}

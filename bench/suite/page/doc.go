// Package page measures the page of `berth up` on a thousand Pods: what an open page costs, and how soon it shows a change.
package page

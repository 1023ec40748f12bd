// node validate.mjs PACKAGES < resources: prints a line for each that its definition refuses.
import { pathToFileURL } from "node:url";

const packages = `${process.argv[2]}/node_modules`;
const GROUPS = {
  "keda.sh/v1alpha1": "@kubernetes-models/keda",
  "cert-manager.io/v1": "@kubernetes-models/cert-manager",
  "monitoring.coreos.com/v1": "@kubernetes-models/prometheus-operator",
  "monitoring.coreos.com/v1alpha1": "@kubernetes-models/prometheus-operator",
};

let text = "";
for await (const chunk of process.stdin) text += chunk;
for (const resource of JSON.parse(text)) {
  const { apiVersion, kind } = resource;
  const path = `${packages}/${GROUPS[apiVersion]}/${apiVersion}/${kind}.js`;
  const module = await import(pathToFileURL(path));
  const Model = module[kind] ?? module.default[kind];
  try {
    new Model(resource).validate();
  } catch (error) {
    console.log(`${kind} ${resource.metadata.name}: ${error.message}`);
  }
}
